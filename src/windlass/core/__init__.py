"""Records and rules: jobs, states, options, outcomes, backoff, ids, time. Nothing in this package does I/O.

Terms: ``docs/internals/glossary.md``. How to add an option: ``docs/internals/add-an-option.md``.
"""
