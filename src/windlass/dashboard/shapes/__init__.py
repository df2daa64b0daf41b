"""What the API answers and takes, beside the shapes of ``wire``. Times are integer milliseconds UTC."""
