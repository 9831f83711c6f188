"""Rows of results: the file they grow in, and what is made of a finished one."""
