"""What a sequence is in one field."""
