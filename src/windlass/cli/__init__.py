"""The command line: one file per command, each an options class and ``async def run(options, out) -> int``.

Click sees only thin functions that fill the options in; rich is imported by ``output`` when something is
drawn. Exit codes: 0 fine, 1 error, 2 wrong usage, 130 interrupted.
"""
