"""Windlass inside web frameworks. Each module needs its framework and is imported by itself.

``contrib.starlette`` and ``contrib.fastapi`` (lifespan, dependencies), ``contrib.flask`` (extension),
``contrib.django`` (settings, commands, a ``django.tasks`` backend). The fixtures for pytest are in
``contrib.testing``, behind the plugin ``pytest_windlass``.
"""
