"""Pure decisions: jobs, states, options, outcomes, backoff, ids, time. No I/O anywhere below.

Words: ``docs/internals/glossary.md``. How to add an option: ``docs/internals/add-an-option.md``.
"""
