"""The same jobs on other systems. Each module has the tasks, and the verbs that the benchmark runs."""
