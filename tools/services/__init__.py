"""Real servers for tests and benchmarks: started on free ports, stopped by their process id."""
