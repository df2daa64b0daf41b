"""Other job systems that tests run beside ours, those that are not Python: installed by npm on first use."""
