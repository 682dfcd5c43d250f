"""Options of all verbs, and what they mean: task, plan, goal, system."""
