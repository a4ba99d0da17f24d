"""What people put into a workspace for the model: playbooks, skills; searches that cannot hang."""
