"""What the API answers and takes, beside the seed's shapes (``wire``). Times are integer milliseconds UTC."""
