"""The feature ledger: which promised features are proved by tests, on which backend.

It uses three files. ``docs/features.json`` is the ledger: every feature that we promise, by id.
``.reports/features.json`` is the evidence of one run of the test suite, written by
``tests/plugins/features.py``. ``docs/features-proved.json`` lists what was proved when it was last committed.
A check compares the second with the third, so that no proof is lost unnoticed.

It does not import the package, so that it works even if the package cannot be imported.

Tests: ``tests/unit/test_features_tool.py``.
"""
