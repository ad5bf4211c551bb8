"""What is known of images, packages and wheels that others publish. Tables, each with where it is from."""
