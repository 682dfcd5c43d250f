"""Options by kind of question: flag, help, and how a text is read."""
