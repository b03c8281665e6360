"""Programs: a network captured once into a list of steps, whole trainings in one native call."""
