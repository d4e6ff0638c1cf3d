"""Settings of a training run: sections, systems, presets, and the errors of a wrong one."""
