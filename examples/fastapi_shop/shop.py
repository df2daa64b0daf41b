"""A small web service: ``uvicorn shop:app``. POST /signup adds a job, GET /jobs/ID says how it went."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from jobs import jobs, send_welcome

from windlass import Queue
from windlass.contrib.fastapi import Jobs, lifespan, queue

app = FastAPI(title="Shop", lifespan=lifespan(jobs))


@app.post("/signup", status_code=202)
async def signup(to: str) -> dict[str, str]:
    job = await send_welcome.options(unique=f"welcome-{to}").enqueue(to)
    return {"job": job.id, "outcome": str(job.outcome)}


@app.get("/jobs/{job_id}")
async def status(job_id: str, jobs: Jobs) -> dict[str, Any]:
    found = await jobs.queue("mail").get_status(job_id)
    if found is None:
        raise HTTPException(404, "there is no such job")
    return found


@app.get("/waiting")
async def waiting(mail: Annotated[Queue, Depends(queue("mail"))]) -> int:
    return await mail.count()
