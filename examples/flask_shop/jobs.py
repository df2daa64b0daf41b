"""The tasks of the shop. ``flask --app shop windlass worker jobs:jobs`` runs them."""

from __future__ import annotations

from flask import current_app

from windlass import Windlass
from windlass.contrib.flask import FlaskWindlass

jobs = Windlass()
extension = FlaskWindlass(jobs)


@jobs.task(queue="mail")
def send_welcome(to: str) -> str:
    return f"{current_app.config['SENDER']} welcomes {to}"
