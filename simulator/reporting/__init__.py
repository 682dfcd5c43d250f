"""Reports: tables, sentences, pictures, traces."""
