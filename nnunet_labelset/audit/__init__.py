"""What was forgotten or drawn wrongly, and one page on which people decide."""
