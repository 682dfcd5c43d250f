"""What a person reads: tables, sentences, pictures, traces."""
