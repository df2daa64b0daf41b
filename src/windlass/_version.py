"""The version of this release, read by the build and by ``windlass --version``."""

__version__ = "0.1.0"
