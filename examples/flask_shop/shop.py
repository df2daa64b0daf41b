"""A small web application in Flask's own way: a factory, an extension, plain views."""

from __future__ import annotations

from flask import Flask, jsonify, request
from jobs import extension, send_welcome

from windlass.contrib.flask import get_windlass


def create_app(url: str | None = None) -> Flask:
    app = Flask(__name__)
    app.config["SENDER"] = "shop@example.com"
    if url is not None:
        app.config["WINDLASS_URL"] = url
    extension.init_app(app)

    @app.post("/signup")
    def signup():
        job = send_welcome.sync.enqueue(request.form["to"])
        return jsonify(job=job.id), 202

    @app.get("/jobs/<job_id>")
    def status(job_id: str):
        found = get_windlass().sync.queue("mail").get_status(job_id)
        return (jsonify(found), 200) if found else (jsonify(error="there is no such job"), 404)

    return app
