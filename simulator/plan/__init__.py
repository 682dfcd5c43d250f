"""What is chosen: a plan is a row of small integers, a table of plans the same with columns."""
