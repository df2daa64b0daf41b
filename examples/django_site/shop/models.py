from __future__ import annotations

from django.db import models


class OutOfStock(Exception):
    """There is none left."""


class Order(models.Model):
    customer = models.CharField(max_length=100)
    state = models.CharField(max_length=20, default="new")
