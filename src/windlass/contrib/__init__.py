"""Integrations with web frameworks. Each module needs its framework and is not imported by others.

``contrib.starlette`` and ``contrib.fastapi`` (lifespan, dependencies), ``contrib.flask`` (extension),
``contrib.django`` (settings, commands, a ``django.tasks`` backend). The fixtures for pytest are in
``contrib.testing``, behind the plugin ``pytest_windlass``.
"""
