"""A client of the HTTP API, for programs that have no connection to the store.

    from windlass.client import Client

    client = Client("https://jobs.example.com", token="...")
    for job in client.search_jobs(search="state:failed error:Payment*")["items"]:
        client.retry_job(job["queue"], job["id"])

It needs nothing but the standard library. Its methods are the operations of ``/api/v1``, made from the
OpenAPI document; answers are plain dictionaries, typed as ``windlass.client.operations`` says.
"""

from windlass.client.connection import ApiProblemError, Response
from windlass.client.operations import Operations

__all__ = ["ApiProblemError", "Client", "Response"]


class Client(Operations):
    """The API of one server."""
