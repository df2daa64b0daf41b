"""Pure decisions: jobs, states, options, outcomes, backoff, ids, time. No I/O anywhere below."""
