"""What a user does, end to end: a config in, a result out, one tracked run each."""
