"""The feature ledger: which promised features are proved by tests, on which backend.

Three files meet here. ``docs/features.json`` is the ledger: every feature we promise, by id.
``.reports/features.json`` is the evidence that one run of the suite left behind, written by
``tests/plugins/features.py``. ``docs/features-proved.json`` is what was proved when it was last
committed; a check compares the second with the third, so that a proof cannot vanish unnoticed.

Independent of the package: it must work while the package does not import.

Tests: ``tests/unit/test_features_tool.py``.
"""
