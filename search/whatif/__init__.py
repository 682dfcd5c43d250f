"""What if: single changes, sweeps, cluster sizes, systems and backends side by side."""
