"""Code shared by the backends whose store is a file on this machine: threads, locks, notification."""
