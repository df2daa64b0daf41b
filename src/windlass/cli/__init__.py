"""The command line: one file per command, with an options class and ``async def run(options, out) -> int``.

Click calls only thin functions that fill in the options. ``output`` imports rich when something is drawn.
Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted.
"""
