"""Tools of this repository; nothing here is part of the package."""
