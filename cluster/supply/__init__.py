"""What the project is made of: the locked distributions, their licences, known vulnerabilities and SBOMs."""
