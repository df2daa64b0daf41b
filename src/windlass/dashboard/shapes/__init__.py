"""Requests and responses of the API, except those of ``wire``. Times are integer milliseconds UTC."""
