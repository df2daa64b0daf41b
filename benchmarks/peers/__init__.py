"""The same jobs on other systems: each module has the tasks, and verbs that the benchmark calls."""
