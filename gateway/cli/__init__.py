"""The command line: one module per noun, each verb ``def verb(args: argparse.Namespace) -> int``."""
