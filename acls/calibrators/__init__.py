from acls.calibrators.temperature import Temperature
