"""What verbs print and write: tables, records, pages, pictures."""
