"""What runs leave behind, as pictures and tables; no torch."""
