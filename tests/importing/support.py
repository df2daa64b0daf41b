"""How many jobs the other systems enqueue: enough for several steps, or as the environment says."""

from __future__ import annotations

import os

MANY = int(os.environ.get("WINDLASS_IMPORT_JOBS", "1200"))
