"""How many jobs the other systems enqueue: enough to need several steps, more with an environment variable."""

from __future__ import annotations

import os

MANY = int(os.environ.get("WINDLASS_IMPORT_JOBS", "1200"))
