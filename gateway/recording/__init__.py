"""What was asked in a time, in a file; asked again of another gateway, as an upgrade is tried."""
