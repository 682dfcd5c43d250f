"""Questions and answers: the only place where a question is orchestrated.

A request says what is asked, an answer holds what was computed; what stands beside it (interval,
nearest run, next step, launch line) is computed when it is asked for, at most once.
"""
