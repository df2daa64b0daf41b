"""What the backends share whose store is a file of this machine: threads, calls, locks, wake-up."""
