"""Steps: layers added up to stages, synchronisation, memory; seconds of kinds meet only here."""
