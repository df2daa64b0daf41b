"""Management commands: ``windlass_worker`` runs jobs, ``windlass`` is the whole command line."""
