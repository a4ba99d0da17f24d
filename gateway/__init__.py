"""How the gateway keeps its letters, lanes and promises, from intake to delivery."""
