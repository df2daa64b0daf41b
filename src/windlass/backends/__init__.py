"""The stores. Each is found by URL; nothing else imports them. See ``docs/internals/stores.md``."""
