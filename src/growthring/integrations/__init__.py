"""Growing inside other people's trainers; each file needs the extra of its name: `growthring[lightning]`."""
