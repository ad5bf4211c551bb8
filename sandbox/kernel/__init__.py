"""What every service uses: store, clock, events, operations, faults, meter, access control, routes."""
